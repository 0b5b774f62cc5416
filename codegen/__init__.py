"""From a schedule to C: loop IR, printers, and the text handed to a compiler."""

"""How long networks take to compile: in fresh processes with empty caches, and from the cache."""

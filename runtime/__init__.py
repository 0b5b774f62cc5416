"""From kernel text to results: toolchains, the cache, argument checks, calls, reference results."""

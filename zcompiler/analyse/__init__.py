"""In: `Captured`. Out: what it weighs: bytes of values, working memory of regions, parameters as buckets."""

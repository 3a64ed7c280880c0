"""In: a captured graph, its buckets, the options and the machine. Out: a `Plan`, frozen data with its reasons."""

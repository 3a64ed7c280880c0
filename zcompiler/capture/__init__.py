"""In: what Dynamo hands a backend. Out: `Captured`, the forward and backward graphs cut into regions, with names."""

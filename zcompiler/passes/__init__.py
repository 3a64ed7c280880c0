"""In: a schedule whose values all rest on the compute tier, and a pipeline. Out: the schedule that partitions,
gathers, releases, reduces, offloads and prefetches as the pipeline says, verified after each pass."""

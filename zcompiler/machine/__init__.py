"""In: what is known of the hardware. Out: a `Machine`: its tiers and lanes by name, for plans and runtimes alike."""

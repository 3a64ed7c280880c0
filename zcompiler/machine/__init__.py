"""In: what is known of the hardware. Out: a `Machine` that prices work, and the `Parts` that a session runs on."""

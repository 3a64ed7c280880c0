"""From what was found to rows: pure functions, which look at nothing but their arguments."""

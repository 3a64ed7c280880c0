"""In: a schedule, and the seconds of each op. Out: when each op starts and ends, and what computing waited for."""

"""Tables of what scripts written for vLLM use and corellm lacks, each with what to use instead; data only."""

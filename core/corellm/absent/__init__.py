"""Tables of names that scripts for other engines use and corellm lacks, each with what to use instead."""

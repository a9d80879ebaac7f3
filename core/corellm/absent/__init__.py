"""What scripts for other engines use and corellm lacks: tables by place, each entry with what to use instead."""

"""The engine room: requests, scheduling, blocks and the step loop. Decisions here are plain Python, without torch."""

"""In front of Serve: its HAProxy made safe to reach, TLS, and how clients reach it."""

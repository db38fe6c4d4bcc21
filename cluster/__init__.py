"""What runs on Ray Serve and in front of it: configuration, pools, coordinator, ingress, CLI."""

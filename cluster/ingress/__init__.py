"""The edge: requests from the wire checked and converted, tokens turned into text, failures into statuses."""

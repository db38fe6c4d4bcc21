"""One file for each kind of drafter that can be trained."""

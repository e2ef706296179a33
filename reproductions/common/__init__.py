"""What several reproductions share."""

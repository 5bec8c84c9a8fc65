"""A run on disk: written between chunks, found again, compared with the one that is asked for."""

"""How long until an event, for rows of which some are never seen to have it."""

"""Maps of vision transformers: from their attention, and from masks that their tokens make."""

"""What a sequence may draw next where a grammar or a thinking budget says so. No torch; llguidance comes late."""

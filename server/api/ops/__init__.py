"""Health, metrics, models, tokens and the page."""

"""Constrains the tokens that a sequence may draw: grammars, thinking budgets, bad words. No torch; imports llguidance
late."""

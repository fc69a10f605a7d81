"""``stentor bench serve``: loads a server that speaks OpenAI's API and measures what a client sees. No torch here."""

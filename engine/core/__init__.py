"""The engine process: requests are scheduled, steps planned, workers kept. No torch."""

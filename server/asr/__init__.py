"""Long-form transcription: from samples to text segments, over an engine that transcribes one window at a time."""

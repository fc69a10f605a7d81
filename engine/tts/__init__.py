"""Speech: voices on disk, the process that speaks with them, and the server's end of it.

What makes sound (onnxruntime and Piper, or torch and transformers) is imported in that process alone.
"""

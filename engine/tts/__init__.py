"""Speech: voices on disk, the speech process, and the server's end of it.

What makes sound (onnxruntime and Piper, or torch and transformers) is imported in that process alone.
"""

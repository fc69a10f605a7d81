"""Audio of clients: decoded in processes of its own, resampled, encoded, and searched for speech.

Inside the server audio is signed 16 bits, little-endian, one channel ("pcm"); only its rate differs. numpy, soxr, PyAV
and the weights of the voice detector are imported where they are first needed, for a server that is never sent audio
needs none of them.
"""

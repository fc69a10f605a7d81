"""What encoders of sounds have beside other layers."""

"""What all houses use: errors, bounded decoding of foreign bytes, durations, files written whole."""

"""The cluster inside the controller: its declarations, its capacity, and the charges for its devices."""

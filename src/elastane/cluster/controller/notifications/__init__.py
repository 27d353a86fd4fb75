"""Messages to people in other services: their occasions, their words, and the processes that send them."""

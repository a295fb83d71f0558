"""Messages that a consumer could not take: they come again later, and become dead letters in the end."""

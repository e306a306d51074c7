"""Front ends: what turns programs written for other systems into a Graph."""

"""Which gradient inversion attacks work under realistic conditions."""

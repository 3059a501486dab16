class Toxic:
    name: str

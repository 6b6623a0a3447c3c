"sha256-4g5zflizbCXMy+IjnPugbHl1gN9/CNz9nyd3A0wzE0g="

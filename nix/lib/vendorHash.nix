"sha256-m0F79urfhYPXbGDGPb/s1lK08ooVyxqZ+IFf6Xuh5P4="

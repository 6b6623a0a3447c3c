# What a sandbox has in the place of a secret: the value of the variable that has the
# credential's name. Names have no "-", so that no placeholder contains another one.
name: "credential-${name}-placeholder"

# Where a sandbox shows the operator's inbox, if there is one.
"/inbox"

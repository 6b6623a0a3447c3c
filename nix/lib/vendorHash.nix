"sha256-xu83e6UStDp43NFxQuhhAuvgxwHQ06A8F/f0mee++s4="

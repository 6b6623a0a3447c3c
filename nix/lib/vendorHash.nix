"sha256-fUTuqOmWnChxg8gV+pOplrTqJmx57NsgBwQwz4ghEtg="

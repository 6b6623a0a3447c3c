"""Revenue of each month and region."""

import pandas as pd


def load(path):
    """Reads the sales: a row for each month and region."""
    sales = pd.read_csv(path, parse_dates=["month"])
    sales["revenue"] = sales.units * sales.price
    return sales


def by_region(sales):
    """Returns revenue with a row for each month and a column for each region."""
    return sales.pivot(index="month", columns="region", values="revenue")

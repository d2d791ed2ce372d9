//! The worth of a request's cost to a rule: the `price` of its attributes.

use super::request::{Cost, ReportedCost, Request};
use super::reservation::ReservedCost;
pub use super::unit_price::Price;

/// The price where a request has the value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributePrice {
    /// Name of the attribute that the price looks at.
    pub attribute: String,
    /// Value of the attribute for which the price holds.
    pub value: String,
    /// The price of such a request.
    pub price: Price,
}

/// A rule's prices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceTable {
    /// Price of a request that none of the others is for.
    pub default: Price,
    /// In the order of their attributes and values.
    pub by_attribute: Vec<AttributePrice>,
}

impl PriceTable {
    /// The price of this request: the dearest that is for it.
    #[must_use]
    pub fn of(&self, request: &Request<'_>) -> Price {
        let has = |one: &&AttributePrice| request.values(&one.attribute).any(|value| value == one.value);
        self.by_attribute.iter().filter(has).map(|one| one.price).max().unwrap_or(self.default)
    }

    /// Returns what a request's cost is in permits. Nothing is nothing, and what is given back is worth what
    /// the same cost took.
    #[must_use]
    pub fn priced(&self, cost: Cost, request: &Request<'_>) -> Cost {
        match cost {
            Cost::Take(units) => Cost::Take(self.of(request).of(units)),
            Cost::Refund(units) => Cost::Refund(self.of(request).of(units)),
            Cost::Report(report) => {
                Cost::Report(ReportedCost { permits: self.of(request).of(report.permits), ..report })
            }
            Cost::Reserve(reserve) => {
                Cost::Reserve(ReservedCost { permits: self.of(request).of(reserve.permits), ..reserve })
            }
            // A reservation brings the price that it was made at.
            Cost::Peek | Cost::Hold(_) | Cost::Commit(_) => cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::unit_price::COST_MAX;
    use super::*;

    fn table() -> PriceTable {
        let price = |value: &str, price| AttributePrice {
            attribute: "model".to_owned(),
            value: value.to_owned(),
            price: Price::parse(price).unwrap(),
        };
        PriceTable { default: Price::ONE, by_attribute: vec![price("large", "3"), price("small", "0.25")] }
    }

    fn cost_of(models: &[&str], cost: Cost) -> Cost {
        let attributes = models.iter().map(|model| ("model", *model)).collect();
        table().priced(cost, &Request::new("d", attributes, cost))
    }

    #[test]
    fn the_dearest_price_that_is_for_a_request_multiplies_its_cost() {
        assert_eq!(cost_of(&["large"], Cost::Take(10)), Cost::Take(30));
        assert_eq!(cost_of(&["small"], Cost::Take(10)), Cost::Take(3));
        assert_eq!(cost_of(&["other"], Cost::Take(10)), Cost::Take(10));
        assert_eq!(cost_of(&[], Cost::Refund(10)), Cost::Refund(10));
        assert_eq!(cost_of(&["small", "large"], Cost::Take(10)), Cost::Take(30));
        assert_eq!(cost_of(&["large"], Cost::Peek), Cost::Peek);
        assert_eq!(cost_of(&["large"], Cost::Take(u64::MAX)), Cost::Take(COST_MAX), "nothing overflows");
    }
}

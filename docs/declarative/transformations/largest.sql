CREATE MATERIALIZED VIEW largest_customers AS
SELECT customer, amount FROM orders_per_customer ORDER BY amount DESC LIMIT 10;

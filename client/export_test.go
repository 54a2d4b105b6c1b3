package client

// SpreadBy replaces the random numbers from 0 to 1 by which renewals are spread.
func (c *Client) SpreadBy(random func() float64) { c.random = random }

package modeldb

import (
	"slices"
	"strings"
)

// matches tells whether a document matches a filter.
func matches(d document, filter document) bool {
	for _, e := range filter {
		if !matchesElement(d, e) {
			return false
		}
	}
	return true
}

func matchesElement(d document, e element) bool {
	switch e.key {
	case "$and":
		return !slices.ContainsFunc(filters(e), func(f document) bool { return !matches(d, f) })
	case "$or":
		return slices.ContainsFunc(filters(e), func(f document) bool { return matches(d, f) })
	case "$nor":
		return !slices.ContainsFunc(filters(e), func(f document) bool { return matches(d, f) })
	}
	if strings.HasPrefix(e.key, "$") {
		refuse("operator %s in filters", e.key)
	}
	v := d.at(e.key)
	conditions, ok := e.value.(document)
	if !ok || len(conditions) == 0 || !strings.HasPrefix(conditions[0].key, "$") {
		return anyOf(v, func(v any) bool { return equalTo(v, e.value) })
	}
	return meets(v, conditions)
}

// filters are the operands of a logical operator.
func filters(e element) []document {
	list, ok := e.value.(array)
	if !ok || len(list) == 0 {
		refuse("%s without a list", e.key)
	}
	out := make([]document, len(list))
	for i, f := range list {
		if out[i], ok = f.(document); !ok {
			refuse("%s of %T", e.key, f)
		}
	}
	return out
}

// meets tells whether a value meets all conditions on it.
func meets(v any, conditions document) bool {
	for _, c := range conditions {
		condition := conditionsOf[c.key]
		if condition == nil {
			refuse("operator %s in filters", c.key)
		}
		if !condition(v, c.value) {
			return false
		}
	}
	return true
}

// conditionsOf are the operators that compare a value with an operand.
var conditionsOf map[string]func(v, operand any) bool

func init() { // $not refers back to it
	conditionsOf = map[string]func(v, operand any) bool{
		"$eq": func(v, o any) bool { return anyOf(v, func(v any) bool { return equalTo(v, o) }) },
		"$gt": func(v, o any) bool {
			return anyOf(v, func(v any) bool { return alike(v, o) && compare(cmpOr(v, null{}), o) > 0 })
		},
		"$gte": func(v, o any) bool {
			return anyOf(v, func(v any) bool { return alike(v, o) && compare(cmpOr(v, null{}), o) >= 0 })
		},
		"$lt": func(v, o any) bool {
			return anyOf(v, func(v any) bool { return alike(v, o) && compare(cmpOr(v, null{}), o) < 0 })
		},
		"$lte": func(v, o any) bool {
			return anyOf(v, func(v any) bool { return alike(v, o) && compare(cmpOr(v, null{}), o) <= 0 })
		},
		"$in":     in,
		"$exists": func(v, o any) bool { return (v != nil) == truthy(o) },
		"$type":   hasType,
		"$not": func(v, o any) bool {
			conditions, ok := o.(document)
			if !ok {
				refuse("$not of %T", o)
			}
			return !meets(v, conditions)
		},
	}
}

// anyOf tells whether a condition holds for a value or, when that is an array, for one of its items.
func anyOf(v any, condition func(any) bool) bool {
	if condition(v) {
		return true
	}
	items, _ := v.(array)
	return slices.ContainsFunc(items, condition)
}

// equalTo is equality in a filter: null is equal to what is not there.
func equalTo(v, o any) bool {
	if _, is := o.(null); is && v == nil {
		return true
	}
	return v != nil && compare(v, o) == 0
}

// alike tells whether an order in a filter applies: it does between values of one type only. What is not there is null to it
// (src/mongo/db/matcher/expression_leaf.cpp, ComparisonMatchExpression::matchesSingleElement).
func alike(v, o any) bool { return rank(cmpOr(v, null{})) == rank(o) }

func in(v, o any) bool {
	list, ok := o.(array)
	if !ok {
		refuse("$in of %T", o)
	}
	return slices.ContainsFunc(list, func(o any) bool { return anyOf(v, func(v any) bool { return equalTo(v, o) }) })
}

func hasType(v, o any) bool {
	name, ok := o.(string)
	if !ok || !slices.Contains(typeNames, name) {
		refuse("$type %v", o)
	}
	return anyOf(v, func(v any) bool { return v != nil && typeName(v) == name })
}

// equalities are what an upsert takes into the document that it makes: the fields that its filter wants to be equal.
func equalities(filter document) (d document) {
	for _, e := range filter {
		v := e.value
		if conditions, ok := v.(document); ok && len(conditions) > 0 && strings.HasPrefix(conditions[0].key, "$") {
			if v = conditions.get("$eq"); v == nil {
				continue
			}
		} else if strings.HasPrefix(e.key, "$") {
			refuse("upsert by %s", e.key)
		}
		var ok bool
		if d, ok = d.with(e.key, v); !ok {
			refuse("upsert by %s", e.key)
		}
	}
	return d
}

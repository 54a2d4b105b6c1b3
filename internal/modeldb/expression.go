package modeldb

import (
	"slices"
	"strings"
)

// evaluate is the value of an aggregation expression; nil where it is a field that is not there.
func evaluate(d document, expression any) any {
	switch x := expression.(type) {
	case string:
		switch {
		case x == "$$ROOT":
			return d
		case strings.HasPrefix(x, "$$"):
			refuse("variable %s", x)
		case strings.HasPrefix(x, "$"):
			return d.at(x[1:])
		}
	case document:
		if len(x) == 1 && strings.HasPrefix(x[0].key, "$") {
			operator := expressionsOf[x[0].key]
			if operator == nil {
				refuse("expression %s", x[0].key)
			}
			return operator(d, x[0].value)
		}
		out := make(document, 0, len(x))
		for _, e := range x {
			if v := evaluate(d, e.value); v != nil {
				out = append(out, element{e.key, v})
			}
		}
		return out
	case array:
		out := make(array, len(x))
		for i, item := range x {
			if out[i] = evaluate(d, item); out[i] == nil {
				out[i] = null{}
			}
		}
		return out
	}
	return expression
}

// expressionsOf are the operators of aggregation expressions. They get their operands as they stand in the command.
var expressionsOf map[string]func(d document, operand any) any

func init() { // they refer back to evaluate
	comparison := func(is func(int) bool) func(document, any) any {
		return func(d document, o any) any {
			v := operands(d, o)
			if len(v) != 2 {
				refuse("comparison of %d values", len(v))
			}
			return is(compare(v[0], v[1]))
		}
	}
	expressionsOf = map[string]func(document, any) any{
		"$eq":          comparison(func(c int) bool { return c == 0 }),
		"$gt":          comparison(func(c int) bool { return c > 0 }),
		"$type":        func(d document, o any) any { return typeName(operands(d, o)[0]) },
		"$add":         add,
		"$max":         func(d document, o any) any { return greatest(operands(d, o)) },
		"$cond":        conditional,
		"$switch":      choose,
		"$bsonSize":    func(d document, o any) any { return int32(len(asDocument(operands(d, o)[0]).encode())) },
		"$strLenBytes": func(d document, o any) any { return int32(len(asText(operands(d, o)[0]))) },
		"$binarySize": func(d document, o any) any {
			if b, ok := operands(d, o)[0].(binary); ok {
				return int32(len(b.data))
			}
			return int32(len(asText(operands(d, o)[0])))
		},
		"$ifNull": func(d document, o any) any {
			v := operands(d, o)
			for _, value := range v {
				if _, is := value.(null); !is && value != nil {
					return value
				}
			}
			return v[len(v)-1]
		},
	}
}

// operands are the values of an operator's operands, of which one may stand without a list.
func operands(d document, o any) []any {
	list, ok := o.(array)
	if !ok {
		list = array{o}
	}
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = evaluate(d, x)
	}
	return out
}

// add adds numbers, or whole milliseconds to a time; null where one of them is that, or is not there. Other types are an error
// (src/mongo/db/pipeline/expression.cpp, ExpressionAdd: TypeMismatch).
func add(d document, o any) any {
	v := operands(d, o)
	if len(v) != 2 {
		refuse("$add of %d values", len(v))
	}
	for _, x := range v {
		if _, is := x.(null); is || x == nil {
			return null{}
		}
	}
	at, isTime := v[0].(date)
	by, isWhole := integer(v[1])
	switch {
	case isTime && isWhole:
		return at + date(by)
	case rank(v[0]) == rank(int32(0)) && rank(v[1]) == rank(int32(0)):
		sum, err := increment(v[0], v[1])
		if err != nil { // $add makes a double of it
			refuse("$add beyond 64 bits")
		}
		return sum
	case isTime || rank(v[1]) == rank(date(0)):
		refuse("$add of %T and %T", v[0], v[1])
	}
	panic(&writeError{code: codeTypeMismatch, message: "$add only supports numeric or date types"})
}

// greatest is the greatest value. What is null or not there does not count.
func greatest(values []any) any {
	var out any = null{}
	for _, v := range values {
		if v != nil && compare(v, out) > 0 {
			out = v
		}
	}
	return out
}

func conditional(d document, o any) any {
	var branch [3]any
	switch o := o.(type) {
	case array:
		if copy(branch[:], o); len(o) != 3 {
			refuse("$cond of %d", len(o))
		}
	case document:
		branch = [3]any{o.get("if"), o.get("then"), o.get("else")}
	}
	if truthy(evaluate(d, branch[0])) {
		return evaluate(d, branch[1])
	}
	return evaluate(d, branch[2])
}

func choose(d document, o any) any {
	branches, _ := asDocument(o).get("branches").(array)
	for _, b := range branches {
		branch := asDocument(b)
		if truthy(evaluate(d, branch.get("case"))) {
			return evaluate(d, branch.get("then"))
		}
	}
	return evaluate(d, asDocument(o).get("default"))
}

func asDocument(v any) document {
	d, ok := v.(document)
	if !ok {
		refuse("%T where a document is to be", v)
	}
	return d
}

func asText(v any) string {
	s, ok := v.(string)
	if !ok {
		refuse("%T where a text is to be", v)
	}
	return s
}

// project is what a projection leaves of a document: named fields, all but named ones, or values of expressions.
func project(d, projection document) document {
	if len(projection) == 0 {
		return d
	}
	if excludes(projection) {
		for _, p := range projection {
			d = d.without(p.key)
		}
		return d
	}
	out := document{}
	if id := d.get("_id"); id != nil && truthy(cmpOr(projection.get("_id"), true)) {
		out = append(out, element{"_id", id})
	}
	for _, p := range projection {
		if p.key == "_id" {
			continue
		}
		var v any
		switch p.value.(type) {
		case bool, int32, int64, float64:
			v = d.at(p.key)
			if outer, _, nested := strings.Cut(p.key, "."); nested && v == nil { // the document that it is not in stays
				if _, is := d.get(outer).(document); is && out.get(outer) == nil {
					if strings.Count(p.key, ".") > 1 {
						refuse("projection of %s", p.key)
					}
					out = append(out, element{outer, document{}})
				}
			}
		default:
			v = evaluate(d, p.value)
		}
		if v == nil {
			continue
		}
		var ok bool
		if out, ok = out.with(p.key, v); !ok {
			refuse("projection of %s", p.key)
		}
	}
	return out
}

func cmpOr(v, otherwise any) any {
	if v == nil {
		return otherwise
	}
	return v
}

// excludes tells whether a projection names what is to be left out. One of _id alone is that.
func excludes(projection document) bool {
	for _, p := range projection {
		switch p.value.(type) {
		case bool, int32, int64, float64:
			if p.key != "_id" || len(projection) == 1 {
				return !truthy(p.value)
			}
		default:
			return false
		}
	}
	return false
}

// runPipeline runs the stages of an aggregation.
func runPipeline(docs []document, stages array) []document {
	for _, s := range stages {
		stage := asDocument(s)
		if len(stage) != 1 {
			refuse("stage of %d operators", len(stage))
		}
		switch o := stage[0].value; stage[0].key {
		case "$match":
			docs = slices.DeleteFunc(slices.Clone(docs), func(d document) bool { return !matches(d, asDocument(o)) })
		case "$sort":
			docs = sorted(docs, asDocument(o))
		case "$limit":
			n, _ := integer(o)
			docs = docs[:min(int(n), len(docs))]
		case "$count":
			if len(docs) > 0 {
				docs = []document{{{asText(o), int32(len(docs))}}}
			}
		case "$group":
			docs = group(docs, asDocument(o))
		default:
			refuse("stage %s", stage[0].key)
		}
	}
	return docs
}

func each(docs []document, f func(document) document) []document {
	out := make([]document, len(docs))
	for i, d := range docs {
		out[i] = f(d)
	}
	return out
}

// group is the stage $group with sums.
func group(docs []document, spec document) (out []document) {
	for _, d := range docs {
		id := evaluate(d, spec.get("_id"))
		if id == nil {
			id = null{}
		}
		i := slices.IndexFunc(out, func(g document) bool { return compare(g.get("_id"), id) == 0 })
		if i < 0 {
			i, out = len(out), append(out, document{{"_id", id}})
		}
		for _, f := range spec {
			if f.key == "_id" {
				continue
			}
			sum := asDocument(f.value)
			if len(sum) != 1 || sum[0].key != "$sum" {
				refuse("accumulator %v", sum)
			}
			total, err := increment(out[i].get(f.key), evaluate(d, sum[0].value))
			if err != nil {
				refuse("$sum: %v", err)
			}
			out[i], _ = out[i].with(f.key, total)
		}
	}
	return out
}

// sorted are the documents in an order. Those that are equal in it stay as they are.
func sorted(docs []document, order document) []document {
	if len(order) == 0 {
		return docs
	}
	docs = slices.Clone(docs)
	slices.SortStableFunc(docs, func(a, b document) int {
		for _, o := range order {
			direction, _ := integer(o.value)
			if direction != 1 && direction != -1 {
				refuse("order %v", o.value)
			}
			if c := compare(sortKey(a, o.key), sortKey(b, o.key)); c != 0 {
				return c * int(direction)
			}
		}
		return 0
	})
	return docs
}

// sortKey is what a document is sorted by at a path: what is not there is null (manual: "Ascending/Descending Sort").
func sortKey(d document, path string) any {
	v := d.at(path)
	if _, is := v.(array); is {
		refuse("order by arrays")
	}
	return cmpOr(v, null{})
}

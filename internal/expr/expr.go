// Package expr evaluates expressions of the Common Expression Language (https://cel.dev) over what came from outside, such as
// a webhook: what they may read, what they must give, and how much they may cost.
package expr

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
	"cel.dev/cel-go/interpreter"
)

const (
	// costLimit bounds one evaluation, in the units of CEL: about one for each step. One that goes over it fails. An
	// expression that looks at each of 10,000 items takes a tenth of it, and one that goes over it has taken some 0.1 s.
	costLimit = 1_000_000
	// maxSource bounds an expression, in bytes.
	maxSource = 4 << 10
)

// Result is what an expression must give.
type Result uint8

// The results.
const (
	Text Result = iota
	Truth
	List
)

func (r Result) String() string { return [...]string{"a string", "true or false", "a list"}[r] }

func (r Result) celType() *cel.Type {
	return [...]*cel.Type{cel.StringType, cel.BoolType, cel.ListType(cel.DynType)}[r]
}

// Language is what expressions may read: variables of any value, and those that map texts to texts.
type Language struct {
	Values, Texts, Maps []string
	// JSON decodes for the function json(string).
	JSON func(string) (any, error)

	env *cel.Env
}

// New makes a language ready. It panics when two variables have one name: languages are made at the start.
func New(l Language) *Language {
	opts := []cel.EnvOption{
		cel.OptionalTypes(), cel.CrossTypeNumericComparisons(true), ext.Strings(ext.StringsVersion(5)),
		cel.ParserExpressionSizeLimit(maxSource),
		cel.Function("json", cel.Overload(jsonOverload, []*cel.Type{cel.StringType}, cel.DynType, cel.UnaryBinding(l.json))),
	}
	for typ, names := range map[*cel.Type][]string{
		cel.DynType: l.Values, cel.StringType: l.Texts, cel.MapType(cel.StringType, cel.StringType): l.Maps,
	} {
		for _, name := range names {
			opts = append(opts, cel.Variable(name, typ))
		}
	}
	env, err := cel.NewEnv(opts...)
	if err != nil {
		panic(err)
	}
	l.env = env
	return &l
}

const jsonOverload = "json_string"

func (l *Language) json(text ref.Val) ref.Val {
	v, err := l.JSON(text.Value().(string))
	if err != nil {
		return types.WrapErr(&Error{"json(): " + err.Error()})
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// costs counts what CEL does not know the cost of.
func costs() cel.ProgramOption {
	return cel.CostTrackerOptions(cost.OverloadTracker(jsonOverload, func(args []ref.Val, _ ref.Val) *uint64 {
		n := uint64(1)
		if s, ok := args[0].Value().(string); ok {
			n += uint64(len(s))
		}
		return &n
	}))
}

// unbounded are functions of CEL's library that can make too much in one step: the limit is looked at only between steps.
var unbounded = []string{"replace", "join", "format"}

// Program is a compiled expression. It is safe for concurrent use.
type Program struct {
	source  string
	want    Result
	program cel.Program
	reads   map[string]bool
}

// ReadsOnly tells whether the expression reads no other variables than these.
func (p *Program) ReadsOnly(variables ...string) bool {
	for name := range p.reads {
		if !slices.Contains(variables, name) {
			return false
		}
	}
	return true
}

// Compile compiles an expression. The error says where in it what is wrong.
func (l *Language) Compile(source string, want Result) (*Program, error) {
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("is empty")
	}
	if len(source) > maxSource {
		return nil, fmt.Errorf("is over %d bytes", maxSource)
	}
	checked, issues := l.env.Compile(source)
	if err := issues.Err(); err != nil {
		return nil, err
	}
	for _, name := range unbounded {
		if len(ast.MatchDescendants(ast.NavigateAST(checked.NativeRep()), ast.FunctionMatcher(name))) > 0 {
			return nil, fmt.Errorf("calls %s(), which is not to be had here: its result can be too large", name)
		}
	}
	if typ := checked.OutputType(); !typ.IsExactType(cel.DynType) && !want.celType().IsAssignableType(typ) {
		return nil, fmt.Errorf("gives %s, and must give %s", typ, want)
	}
	program, err := l.env.Program(checked, cel.CostLimit(costLimit), costs(), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, err
	}
	reads := make(map[string]bool)
	for _, r := range checked.NativeRep().ReferenceMap() {
		if r.Name != "" {
			reads[r.Name] = true
		}
	}
	return &Program{source: source, want: want, program: program, reads: reads}, nil
}

// Error says why an expression gave nothing. It holds nothing of what the expression has read.
type Error struct{ Problem string }

func (e *Error) Error() string { return e.Problem }

// Variables gives the value of a variable, made when it is asked for. Its error becomes that of the evaluation, unless the
// expression does without the variable.
type Variables func(name string) (any, error)

// ResolveName implements [interpreter.Activation].
func (v Variables) ResolveName(name string) (any, bool) {
	value, err := v(name)
	if err != nil {
		return types.WrapErr(&Error{name + ": " + err.Error()}), true
	}
	return value, true
}

// Parent implements [interpreter.Activation].
func (Variables) Parent() interpreter.Activation { return nil }

func (p *Program) eval(ctx context.Context, vars Variables) (ref.Val, error) {
	v, _, err := p.program.ContextEval(ctx, vars)
	if err == nil {
		return v, nil
	}
	return nil, p.explain(ctx, err)
}

// explain says what is wrong, in words of which none is of the input.
func (p *Program) explain(ctx context.Context, err error) error {
	own := (*Error)(nil)
	cancelled := interpreter.EvalCancelledError{}
	text := err.Error()
	switch {
	case errors.As(err, &own):
		return own
	case ctx.Err() != nil:
		return &Error{"took too long"}
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return &Error{fmt.Sprintf("costs more than %d steps", costLimit)}
	}
	if _, key, ok := strings.Cut(text, "no such key: "); ok {
		if strings.Contains(p.source, key) {
			return &Error{"there is no " + key}
		}
		return &Error{"there is no such key"}
	}
	for _, known := range []string{"division by zero", "divide by zero", "modulus by zero", "index out of bounds", "no such overload"} {
		if strings.Contains(text, known) {
			return &Error{known}
		}
	}
	return &Error{"cannot be evaluated"}
}

func (p *Program) wrong(v ref.Val) error {
	return &Error{fmt.Sprintf("gives %s, and must give %s", v.Type().TypeName(), p.want)}
}

// Text evaluates an expression that gives a text.
func (p *Program) Text(ctx context.Context, vars Variables) (string, error) {
	v, err := p.eval(ctx, vars)
	if err != nil {
		return "", err
	}
	s, ok := v.(types.String)
	if !ok {
		return "", p.wrong(v)
	}
	return string(s), nil
}

// Truth evaluates an expression that gives true or false.
func (p *Program) Truth(ctx context.Context, vars Variables) (bool, error) {
	v, err := p.eval(ctx, vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, p.wrong(v)
	}
	return bool(b), nil
}

// List evaluates an expression that gives a list, and returns its elements as JSON has them: maps, lists, texts, whole numbers,
// doubles, truth values and nil. A list of more than most elements is returned up to there.
func (p *Program) List(ctx context.Context, vars Variables, most int) ([]any, error) {
	v, err := p.eval(ctx, vars)
	if err != nil {
		return nil, err
	}
	list, ok := v.(traits.Lister)
	if !ok {
		return nil, p.wrong(v)
	}
	var out []any
	for it := list.Iterator(); it.HasNext() == types.True && len(out) < most; {
		value, err := native(it.Next())
		if err != nil {
			return nil, err
		}
		out = append(out, value)
	}
	return out, nil
}

// native is a value as JSON has it.
func native(v ref.Val) (any, error) {
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.Bool, types.Int, types.Double:
		return v.Value(), nil
	case types.Uint:
		if v > 1<<63-1 {
			return fmt.Sprint(uint64(v)), nil
		}
		return int64(v), nil
	case types.String:
		if !utf8.ValidString(string(v)) {
			return nil, &Error{"an element has a text that is not UTF-8"}
		}
		return string(v), nil
	case traits.Mapper:
		return nativeMap(v)
	case traits.Lister:
		out := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			value, err := native(it.Next())
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		return out, nil
	}
	return nil, &Error{"an element has a value of the type " + v.Type().TypeName() + ", which JSON has not"}
}

func nativeMap(m traits.Mapper) (any, error) {
	// What came out of the body as it is needs no copy.
	if plain, ok := m.Value().(map[string]any); ok && reflect.TypeOf(m.Value()).Elem().Kind() == reflect.Interface {
		return plain, nil
	}
	out := map[string]any{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, &Error{"an element has a key that is no text"}
		}
		value, err := native(m.Get(key))
		if err != nil {
			return nil, err
		}
		out[string(name)] = value
	}
	return out, nil
}
